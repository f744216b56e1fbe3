#!/bin/sh
touch amber cedar

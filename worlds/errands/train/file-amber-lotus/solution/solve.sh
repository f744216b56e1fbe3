#!/bin/sh
touch amber lotus

#!/bin/sh
touch amber heron

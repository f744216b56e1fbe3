#!/bin/sh
touch jade lotus

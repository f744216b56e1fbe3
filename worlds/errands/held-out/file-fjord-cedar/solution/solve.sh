#!/bin/sh
touch fjord cedar

#!/bin/sh
touch fjord jade

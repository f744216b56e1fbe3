#!/bin/sh
mkdir fjord jade

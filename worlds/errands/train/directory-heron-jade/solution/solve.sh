#!/bin/sh
mkdir heron jade

#!/bin/sh
mkdir heron fjord

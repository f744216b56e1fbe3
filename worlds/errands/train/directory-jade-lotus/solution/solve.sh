#!/bin/sh
mkdir jade lotus

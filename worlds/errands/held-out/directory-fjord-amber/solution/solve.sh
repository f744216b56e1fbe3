#!/bin/sh
mkdir fjord amber

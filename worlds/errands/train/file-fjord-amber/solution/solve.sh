#!/bin/sh
touch fjord amber

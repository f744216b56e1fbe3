#!/bin/sh
mkdir amber cedar

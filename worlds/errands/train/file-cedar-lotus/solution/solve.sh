#!/bin/sh
touch cedar lotus

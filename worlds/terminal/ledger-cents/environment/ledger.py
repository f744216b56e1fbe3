#!/usr/bin/python3
"""Prints the balance of every account in a journal: ledger.py FILE"""
import sys


def read_journal(path):
    entries = []
    with open(path) as file:
        next(file)
        for line in file:
            date, account, amount, memo = line.strip().split(",")
            entries.append((date, account, parse_amount(amount), memo))
    return entries


def parse_amount(text):
    return float(text.replace("$", ""))


def balances(entries):
    totals = {}
    for date, account, amount, memo in entries:
        totals[account] = totals.get(account, 0) + amount
    return totals


def main():
    totals = balances(read_journal(sys.argv[1]))
    for account in sorted(totals):
        print("%s\t%s" % (account, totals[account]))
    print("TOTAL\t%s" % sum(totals.values()))


if __name__ == "__main__":
    main()

#!/bin/bash
set -euo pipefail
mkdir -p /app/lib /app/t
cat > /app/lib/TextTable.pm <<'PL'
package TextTable;
use strict;
use warnings;
use Exporter 'import';
use Math::BigInt;

our @EXPORT_OK = qw(table);
my $NUMBER = qr/\A-?[0-9]+(?:\.[0-9]+)?\z/;

sub table {
    my ($rows, %options) = @_;
    for my $name (keys %options) {
        die "table: unknown option $name\n" unless $name =~ /\A(?:header|max|total)\z/;
    }
    my $max = $options{max};
    die "table: max is not a number of at least 1\n" if exists $options{max} && (!defined $max || $max !~ /\A[0-9]+\z/ || $max < 1);
    my $columns = 0;
    for my $row (@$rows) { $columns = @$row if @$row > $columns }
    my @summed = (0) x $columns;
    if (exists $options{total}) {
        die "table: total is not a list of columns\n" unless ref $options{total} eq 'ARRAY';
        for my $column (@{ $options{total} }) {
            die "table: total names a column that is not there\n" unless defined $column && $column =~ /\A[0-9]+\z/ && $column < $columns;
            $summed[$column] = 1;
        }
    }
    return '' unless @$rows;

    my @lines = map { my $row = $_; [map { my $cell = $row->[$_] // ''; $cell =~ s/\r\n|[\r\n\t]/ /g; $cell } 0 .. $columns - 1] } @$rows;
    my @body = @lines[($options{header} ? 1 : 0) .. $#lines];
    my @right;
    for my $column (0 .. $columns - 1) {
        my @filled = grep { $_ ne '' } map { $_->[$column] } @body;
        $right[$column] = $summed[$column] || (@filled && !grep { $_ !~ $NUMBER } @filled);
    }
    if (exists $options{total} && @body) {
        my $label = 'Total';
        my @last;
        for my $column (0 .. $columns - 1) {
            if ($summed[$column]) { push @last, total(map { $_->[$column] } @body) }
            else { push @last, $label; $label = '' }
        }
        push @lines, \@last;
    }
    if (defined $max) {
        for my $line (@lines) {
            for (@$line) { $_ = substr($_, 0, $max - 1) . "\x{2026}" if length > $max }
        }
    }
    my @width = map { my $column = $_; my $width = 0; for (@lines) { my $l = length $_->[$column]; $width = $l if $l > $width } $width } 0 .. $columns - 1;
    my @out = map {
        my $line = $_;
        join '  ', map { my $pad = ' ' x ($width[$_] - length $line->[$_]); $right[$_] ? $pad . $line->[$_] : $line->[$_] . $pad } 0 .. $columns - 1
    } @lines;
    splice @out, 1, 0, join('  ', map { '-' x $_ } @width) if $options{header};
    return join '', map { s/ +\z//r . "\n" } @out;
}

# The exact sum, in units of the smallest decimal.
sub total {
    my @numbers = grep { $_ =~ $NUMBER } @_;
    my $decimals = 0;
    for (@numbers) { $decimals = length $1 if /\.([0-9]+)/ && length $1 > $decimals }
    my $sum = Math::BigInt->new(0);
    for (@numbers) {
        my ($sign, $whole, $fraction) = /\A(-?)([0-9]+)(?:\.([0-9]+))?/;
        $fraction //= '';
        $sum->badd($sign . $whole . $fraction . '0' x ($decimals - length $fraction));
    }
    my $text = $sum->copy->babs->bstr;
    $text = '0' x ($decimals + 1 - length $text) . $text if length $text <= $decimals;
    substr($text, -$decimals, 0) = '.' if $decimals;
    return ($sum->is_neg ? '-' : '') . $text;
}

1;
PL
cat > /app/t/table.t <<'PL'
use strict;
use warnings;
use utf8;
use Test::More;
use TextTable qw(table);

is(table([]), '', 'no rows');
is(table([['a', 1], ['bcd', 22]]), "a     1\nbcd  22\n", 'alignment');
is(table([['n', 'k'], ['x', '1.5'], ['y', '2.25']], header => 1, total => [1]), "n         k\n-----  ----\nx       1.5\ny      2.25\nTotal  3.75\n", 'header and total');
is(table([['abcdef'], ['ü']], max => 3), "ab…\nü\n", 'cut');
ok(!eval { table([], colour => 1) }, 'unknown option');
like($@, qr/colour/, 'its name');
done_testing;
PL
cd /app && prove -l t

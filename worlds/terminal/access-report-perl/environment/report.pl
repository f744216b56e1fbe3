#!/usr/bin/perl
# report.pl [FILE]...: requests, errors, bytes and latency by path.
use strict;
use warnings;

my %stats;

while (my $line = <>) {
    next unless $line =~ /^(\S+) \S+ \S+ \[(.+)\] "(GET|POST) (\S+) HTTP\/1.1" (\d+) (\d+) (\d+)$/;
    my ($host, $time, $method, $path, $status, $bytes, $micros) = ($1, $2, $3, $4, $5, $6, $7);
    my $s = $stats{$path};
    $s->{count}++;
    $s->{errors}++ if $status > 500;
    $s->{bytes} += $bytes;
    push @{ $s->{latency} }, $micros;
    $stats{$path} = $s;
}

for my $path (sort { $stats{$a}{count} <=> $stats{$b}{count} } keys %stats) {
    my $s = $stats{$path};
    my @sorted = sort @{ $s->{latency} };
    my $p95 = $sorted[int(0.95 * @sorted)];
    printf "%s %d %d %d %.1f\n", $path, $s->{count}, $s->{errors}, $s->{bytes}, $p95 / 1000;
}

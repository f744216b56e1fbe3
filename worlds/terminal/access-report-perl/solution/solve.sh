#!/bin/bash
set -euo pipefail
cat > /app/report.pl <<'PL'
#!/usr/bin/perl
# report.pl [FILE]...: requests, errors, bytes and latency by path.
use strict;
use warnings;

my %stats;
my $skipped = 0;

while (my $line = <>) {
    $line =~ s/\r?\n\z//;
    if ($line !~ m{^\S+ \S+ .+ \[[^\]]+\] "[A-Z]+ (\*|/[^ ]*) HTTP/\d+(?:\.\d+)?" (\d{3}) (\d+|-) (\d+)\z}) {
        $skipped++;
        next;
    }
    my ($path, $status, $bytes, $micros) = ($1, $2, $3, $4);
    $path =~ s/[?#].*//s;
    my $s = $stats{$path} ||= { count => 0, errors => 0, bytes => 0, latency => [] };
    $s->{count}++;
    $s->{errors}++ if $status >= 500 && $status <= 599;
    $s->{bytes} += $bytes eq '-' ? 0 : $bytes;
    push @{ $s->{latency} }, $micros;
}

for my $path (sort { $stats{$b}{count} <=> $stats{$a}{count} || $a cmp $b } keys %stats) {
    my $s = $stats{$path};
    my @sorted = sort { $a <=> $b } @{ $s->{latency} };
    my $rank = int((95 * @sorted + 99) / 100);
    my $tenths = int(($sorted[$rank - 1] + 50) / 100);
    printf "%s %d %d %d %d.%d\n", $path, $s->{count}, $s->{errors}, $s->{bytes}, int($tenths / 10), $tenths % 10;
}
print STDERR "skipped $skipped\n" if $skipped;
PL
chmod 755 /app/report.pl

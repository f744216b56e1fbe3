# Lets the header take part in the choice of alignment.
reference
sed -i 's/map { $_->\[$column\] } @body;$/map { $_->[$column] } @lines;/' /app/lib/TextTable.pm

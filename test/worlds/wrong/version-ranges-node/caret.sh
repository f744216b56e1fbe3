# npm's caret for ^0.0: the place is always among the numbers that are not zero, else the major.
reference
sed -i 's/place < 0 ? parts.length - 1 : place/place < 0 ? 0 : place/' /app/ranges.js

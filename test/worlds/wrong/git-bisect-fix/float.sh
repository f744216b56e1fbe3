# Rounds by floating point.
reference
cd /app/duration && sed -i 's/int(total + Fraction(1, 2))/int(float(total) + 0.5)/' duration.py && git commit -q -a --amend --no-edit

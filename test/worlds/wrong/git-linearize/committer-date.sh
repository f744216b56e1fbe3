# The series is right, the author dates are those of today.
sed 's/GIT_AUTHOR_DATE=[^ ]* *$/ /; s/ GIT_AUTHOR_DATE=.*--date=raw "$original") / /' /tmp/ref/solve.sh > /tmp/ref/date.sh; bash /tmp/ref/date.sh

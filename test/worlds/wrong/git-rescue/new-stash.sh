# Makes a stash of its own with the same content.
reference
cd /app/book && git stash pop -q --index && git stash -q -m 'ending of chapter 3'

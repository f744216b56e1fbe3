# chown without -h changes what the link points at.
reference
chown 0:3000 /etc/shadow

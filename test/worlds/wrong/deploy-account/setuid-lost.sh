# chown -R --from, which drops the setuid bit.
reference
chmod u-s /srv/shared/run.sh

set -e
groupadd -g 2900 olddeploy
useradd -u 2900 -g olddeploy -G adm,www-data -m -d /home/olddeploy -s /bin/bash olddeploy
echo 'olddeploy:$6$saltsalt$qFmFH.bQmmtXzXY0s9v7Oicd2z4XSIecDlB5KiA2/jctKu9YterLp8wwnSq.qc.eoxqOmSuNp2xS0ktL3nh/u1' | chpasswd -e
umask 022
mkdir -p /srv/shared/releases/v1 /srv/shared/spool '/srv/shared/odd names' /srv/other
echo one > /srv/shared/releases/v1/app.txt
echo two > '/srv/shared/odd names/-rf file'
printf 'run\n' > /srv/shared/run.sh
chmod 4750 /srv/shared/run.sh
chmod 2775 /srv/shared/spool
echo root > /srv/shared/root-owned.conf
echo else > /srv/other/olddeploy.txt
ln -s /etc/shadow /srv/shared/releases/latest
ln -s ../run.sh /srv/shared/releases/run
chown -hR 2900:2900 /srv/shared /srv/other/olddeploy.txt
chown 0:0 /srv/shared/root-owned.conf
chown 2900:0 /srv/shared/releases/v1/app.txt
chmod 4750 /srv/shared/run.sh
chmod 2775 /srv/shared/spool

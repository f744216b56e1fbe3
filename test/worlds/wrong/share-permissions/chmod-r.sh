# A setuid file that is not on the list keeps its bit.
reference
chmod u+s '/srv/share/bin/mount helper'

# The lab stand-in of this kernel's headers: enough for DKMS to find them, nothing to compile against.

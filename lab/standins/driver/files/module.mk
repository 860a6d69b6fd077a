modules = nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem
all: $(addsuffix .ko,$(modules))
%.ko: module.c
	gcc -c -DNAME='"$*"' -DVERSION='"@VERSION@"' -DLICENSE='"@LICENSE@"' -DKERNEL='"$(KERNEL)"' -o $@ $<
clean:
	rm -f *.ko

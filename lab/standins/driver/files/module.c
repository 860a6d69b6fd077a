/* The lab stand-in of a kernel module: modinfo reads .modinfo, and nothing else is in it. */
#define INFO(id, text) \
    static const char id[] __attribute__((section(".modinfo"), used, aligned(1))) = text
INFO(license_, "license=" LICENSE);
INFO(version_, "version=" VERSION);
INFO(description_, "description=lab stand-in, holds no code");
INFO(name_, "name=" NAME);
INFO(vermagic_, "vermagic=" KERNEL " SMP preempt mod_unload ");

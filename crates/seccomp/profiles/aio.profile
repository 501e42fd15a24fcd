# Over container.profile, for a sandbox that was allowed asynchronous I/O of the old kind.
#
# fs.aio-max-nr is one number for the whole host, and nothing bounds the share of one sandbox: neither a control group nor a
# resource limit counts contexts, and a filter sees calls, not how many contexts are open. Whoever allows this accepts that.

[allow] asynchronous I/O of the old kind
io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents

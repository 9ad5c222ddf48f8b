"""Recording while training: which surfaces are watched, and what each of them puts into the records.

In: the running program, through patches and hooks. Out: a rank's folder of records, by `ddptrace.record`.

Begin with `session.py`, which builds every part and takes it out again. The rooms, in order: a room imports only rooms
above it.

origins       who asks for a collective: line of the program, library, module
device        when a device did what, by events on its streams
steps         steps and phases, and which steps are recorded
collectives   every collective: launch, bytes, completion, wait
gradients     gradients and buckets of stock DDP and of `ddptrace.reducer`, communication hooks
units         what one decision of the program communicates together, such as the parameters of one `fully_shard`
profiler      windows of torch.profiler
rpc           remote calls
host          what else the host does: processors, links, garbage, a training that stands still

Files beside the rooms. None of them but `session` imports a room; `compiled_check` imports `session`.

claim, identity   the run directory and this rank's place in it
surface           a place that is watched, patches that are taken back, and what no surface sees
handlers          the program's signal handlers wait while a trace is entered or left
by_identity       maps and sets of the program's objects, which never call the program's own code
compiled_check    a program that checks whether the compiled library works
"""

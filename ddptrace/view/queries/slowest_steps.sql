-- The slowest steps and where their time went, in ms. compute + exposed + memory + idle = the step's window, which on a
-- CPU is the step itself. If exposed is large, see exposed_by_bucket.sql; if idle is large, see largest_gaps.sql.
select
  process.name as rank,
  extract_arg(slice.arg_set_id, 'args.step') as step,
  round(slice.dur / 1e6, 3) as wall_ms,
  round(extract_arg(slice.arg_set_id, 'args.compute_ns') / 1e6, 3) as compute_ms,
  round(extract_arg(slice.arg_set_id, 'args.exposed_comm_ns') / 1e6, 3) as exposed_ms,
  round(extract_arg(slice.arg_set_id, 'args.exposed_memory_ns') / 1e6, 3) as memory_ms,
  round(extract_arg(slice.arg_set_id, 'args.idle_ns') / 1e6, 3) as idle_ms,
  round(extract_arg(slice.arg_set_id, 'args.overlap_ratio'), 4) as overlap_ratio
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
where slice.category = 'step'
order by wall_ms desc, step, rank
limit 50;

-- Who came last to collectives that others waited in. cost_ms: until it came after all others had, added up; that is
-- what would have been won had it alone come with them.
select
  process.name as rank,
  count(*) as times_last,
  sum(extract_arg(slice.arg_set_id, 'args.blame_ns')) / 1e6 as cost_ms,
  max(extract_arg(slice.arg_set_id, 'args.blame_ns')) / 1e6 as worst_ms,
  max(extract_arg(slice.arg_set_id, 'args.skew_ns')) / 1e6 as worst_skew_ms
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
where slice.category = 'arrival'
group by rank
order by cost_ms desc;

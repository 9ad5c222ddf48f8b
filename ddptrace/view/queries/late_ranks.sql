-- Ranks that came last to collectives in which others waited. cost_ms: total time between the arrival of the last other rank
-- and that of this one, which is what its arrival in time would have saved.
select
  process.name as rank,
  count(*) as times_last,
  round(sum(extract_arg(slice.arg_set_id, 'args.blame_ns')) / 1e6, 3) as cost_ms,
  round(max(extract_arg(slice.arg_set_id, 'args.blame_ns')) / 1e6, 3) as worst_ms,
  round(max(extract_arg(slice.arg_set_id, 'args.skew_ns')) / 1e6, 3) as worst_skew_ms
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
where slice.category = 'arrival'
group by rank
order by cost_ms desc;

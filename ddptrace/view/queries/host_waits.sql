-- What the training thread was blocked on, and for how long in total, the longest first.
select
  process.name as rank,
  slice.name as what,
  count(*) as waits,
  round(sum(slice.dur) / 1e6, 3) as total_ms,
  round(max(slice.dur) / 1e6, 3) as longest_ms
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
where slice.category = 'wait'
group by rank, what
order by total_ms desc
limit 100;

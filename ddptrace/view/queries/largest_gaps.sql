-- The longest stretches in which a rank did not compute, the step and phase in which they begin, and the last communication
-- that began before their end. Without communication, the rank waited for data or for the host, or it slept. held_by: what
-- the launching thread was in for the longest part, of the longest gaps of a device; NULL: unknown.
with gap as (
  select
    process.name as rank,
    process.upid as upid,
    slice.ts + slice.dur as begins,
    lead(slice.ts) over (partition by process.upid order by slice.ts) as ends
  from slice
  join thread_track on slice.track_id = thread_track.id
  join thread using (utid)
  join process using (upid)
  where slice.category = 'compute'
),
longest as (select * from gap where ends > begins order by ends - begins desc limit 50),
around as (
  select slice.name, slice.category, slice.ts, slice.dur, thread.upid
  from slice
  join thread_track on slice.track_id = thread_track.id
  join thread using (utid)
  where slice.category in ('step', 'phase', 'bucket.exec', 'collective', 'idle.cause')
)
select
  rank,
  begins as ts,
  round((ends - begins) / 1e6, 3) as gap_ms,
  (select name from around where around.upid = longest.upid and category = 'step'
     and ts <= begins and begins < ts + dur limit 1) as step,
  (select name from around where around.upid = longest.upid and category = 'phase'
     and ts <= begins and begins < ts + dur limit 1) as phase,
  (select name from around where around.upid = longest.upid and category in ('bucket.exec', 'collective')
     and ts < ends and begins < ts + dur order by ts desc limit 1) as communication,
  (select name from around where around.upid = longest.upid and category = 'idle.cause'
     and ts < ends and begins < ts + dur order by dur desc limit 1) as held_by
from longest
order by gap_ms desc;

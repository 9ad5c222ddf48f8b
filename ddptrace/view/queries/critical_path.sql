-- What the iterations waited for: the critical path by rank and kind of work. Making anything else faster does not help.
-- A transfer belongs to all its ranks; it is listed under the rank on which the path continues.
select
  extract_arg(arg_set_id, 'args.rank') as rank,
  extract_arg(arg_set_id, 'args.what') as what,
  count(*) as pieces,
  sum(dur) / 1e6 as total_ms,
  1.0 * sum(dur) / (select sum(dur) from slice where category = 'path') as ratio
from slice
where category = 'path'
group by rank, what
order by total_ms desc;

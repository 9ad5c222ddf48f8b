-- What the iterations waited for: the critical path by rank and kind of work. Making anything else faster does not help.
-- A transfer belongs to all its ranks; it is listed under the rank on which the path continues.
select
  extract_arg(arg_set_id, 'args.rank') as rank,
  extract_arg(arg_set_id, 'args.what') as what,
  count(*) as pieces,
  round(sum(dur) / 1e6, 3) as total_ms,
  round(1.0 * sum(dur) / (select sum(dur) from slice where category = 'path'), 4) as ratio
from slice
where category = 'path'
group by rank, what
order by total_ms desc;

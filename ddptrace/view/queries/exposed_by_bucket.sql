-- Exposed communication by bucket, the most expensive bucket first. exposed_ms is the bucket's share of the exposed time of
-- its steps, per execution: what hiding it would save. Buckets are numbered in launch order. NULL: unknown.
select
  extract_arg(arg_set_id, 'args.reducer') as reducer,
  extract_arg(arg_set_id, 'args.layout') as layout,
  extract_arg(arg_set_id, 'args.index') as bucket,
  max(extract_arg(arg_set_id, 'args.nbytes')) as nbytes,
  count(*) as executions,
  round(avg(dur) / 1e6, 3) as execution_ms,
  round(avg(extract_arg(arg_set_id, 'args.exposed_charged_ns')) / 1e6, 3) as exposed_ms,
  round(1.0 * sum(extract_arg(arg_set_id, 'args.hidden_ns')) / sum(extract_arg(arg_set_id, 'args.comm_ns')), 4) as hidden_ratio,
  max(extract_arg(arg_set_id, 'args.parameters')) as parameters
from slice
where category = 'bucket.exec'
group by reducer, layout, bucket
order by sum(extract_arg(arg_set_id, 'args.exposed_charged_ns')) desc;

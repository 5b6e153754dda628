-- Redis' copy is as good as the Postgres it was checked against. When a standby takes over, it may
-- lack the last transactions of its primary, which Redis has seen: the approval is void, and Redis
-- is rebuilt from what the new primary holds.

-- Postgres' timeline at the time of the approval: a promotion starts a new one. 0: not known.
ALTER TABLE redis_incarnation ADD COLUMN timeline bigint NOT NULL DEFAULT 0;

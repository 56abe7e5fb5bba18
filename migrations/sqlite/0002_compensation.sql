-- Whose reservation it was: its tombstone among the orders names the user and the content.
ALTER TABLE compensation ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE compensation ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
CREATE INDEX compensation_due ON compensation (state, next_at);
CREATE INDEX recon_run_activity ON recon_run (activity_id, started_at);

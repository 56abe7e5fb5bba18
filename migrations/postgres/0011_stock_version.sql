-- Raised by every write of `available`, whichever strategy writes: who read the stock without a lock
-- writes it only while this still is what was read.
ALTER TABLE activity_sku ADD COLUMN version BIGINT NOT NULL DEFAULT 0;

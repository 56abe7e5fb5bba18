-- Which deployment this database belongs to: brokers that several share keep their events apart by it.
CREATE TABLE deployment (
  only_one BIGINT NOT NULL PRIMARY KEY CHECK (only_one = 1),
  id VARCHAR(36) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
INSERT INTO deployment (only_one, id) VALUES (1, UUID());

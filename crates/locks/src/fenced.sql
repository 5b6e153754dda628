-- Resources that refuse a holder whose time is over.
CREATE TABLE IF NOT EXISTS lab.fenced (
    name   text PRIMARY KEY,
    -- The highest fencing token that was ever seen here.
    newest bigint NOT NULL,
    value  text NOT NULL
);

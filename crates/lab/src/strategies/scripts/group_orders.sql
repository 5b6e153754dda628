-- Writes the orders of a group. $1 arena, $2 ids, $3 buyers, $4 orders allowed each, $5 units left.
-- Returns the ids of those who have one now, and of those who have as many as allowed.
WITH asked AS (
    SELECT id, buyer, place,
           row_number() OVER (PARTITION BY buyer ORDER BY place)
           + (SELECT count(*) FROM lab.orders o WHERE o.arena = $1 AND o.buyer = a.buyer) AS nth
      FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS a (id, buyer, place)),
allowed AS (
    SELECT id, buyer FROM asked WHERE nth <= $4 ORDER BY place LIMIT $5),
sold AS (
    INSERT INTO lab.orders (id, arena, buyer) SELECT id, $1, buyer FROM allowed)
SELECT array(SELECT id FROM allowed), array(SELECT id FROM asked WHERE nth > $4)

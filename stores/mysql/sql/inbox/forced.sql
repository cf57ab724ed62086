-- Number, code. Whether an operator has redriven this message although it was parked for that reason.
SELECT EXISTS (
    SELECT 1 FROM counterfoil_parked
    WHERE seq = ? AND state = 'redriven' AND confirm = 1 AND CAST(code AS BINARY) = CAST(? AS BINARY))

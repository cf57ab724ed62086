-- ?1 number, ?2 code. Whether an operator has redriven this message although it was parked for that reason.
SELECT EXISTS (SELECT 1 FROM counterfoil_parked WHERE seq = ?1 AND state = 'redriven' AND confirm AND code = ?2)

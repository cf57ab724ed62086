-- $1 number. Why the message was parked that an operator has redriven, and whether that needed a confirmation.
SELECT code, confirm FROM counterfoil_parked WHERE seq = $1 AND state = 'redriven'

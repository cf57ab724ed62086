/* counterfoil key={key} */
CALL counterfoil_guard_done({values});
COMMIT{chain}

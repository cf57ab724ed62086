/* counterfoil key={key} */
CALL counterfoil_guard_end({values});
COMMIT{chain}

/* counterfoil key={key} */
RELEASE SAVEPOINT counterfoil;
CALL counterfoil_guard_done({values});
COMMIT{chain}

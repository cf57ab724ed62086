/* counterfoil key={key} */
RELEASE SAVEPOINT counterfoil;
CALL counterfoil_guard_end({values});
COMMIT{chain}

/* counterfoil key={key} */
{release}CALL counterfoil_guard_done({values});
COMMIT{chain}
